"""What engines say of themselves, under one set of names."""

from __future__ import annotations

from dataclasses import replace

import pytest

from paceline.core import SpeculationStats
from paceline.core.rounds import Round
from paceline.engine.config import EngineStats
from paceline.engines.metrics import EngineMetrics, TimeSpread
from paceline.engines.paceline_server import PacelineServer
from paceline.engines.vllm import Vllm
from paceline.server.metrics import ServerMetrics

TWO_REPLICAS = """
# TYPE vllm:num_requests_running gauge
vllm:num_requests_running{engine="0",model_name="m"} 2.0
vllm:num_requests_running{engine="1",model_name="m"} 1.0
# TYPE vllm:kv_cache_usage_perc gauge
vllm:kv_cache_usage_perc{engine="0",model_name="m"} 0.9
vllm:kv_cache_usage_perc{engine="1",model_name="m"} 0.3
# TYPE vllm:prefix_cache_queries counter
vllm:prefix_cache_queries_total{engine="0",model_name="m"} 100.0
# TYPE vllm:prefix_cache_hits counter
vllm:prefix_cache_hits_total{engine="0",model_name="m"} 75.0
# TYPE vllm:request_success counter
vllm:request_success_total{engine="0",finished_reason="stop",model_name="m"} 3.0
vllm:request_success_total{engine="1",finished_reason="length",model_name="m"} 4.0
# TYPE vllm:time_to_first_token_seconds histogram
vllm:time_to_first_token_seconds_bucket{engine="0",le="0.1",model_name="m"} 2.0
vllm:time_to_first_token_seconds_bucket{engine="0",le="0.2",model_name="m"} 4.0
vllm:time_to_first_token_seconds_bucket{engine="0",le="+Inf",model_name="m"} 4.0
vllm:time_to_first_token_seconds_count{engine="0",model_name="m"} 4.0
vllm:time_to_first_token_seconds_sum{engine="0",model_name="m"} 0.5
"""
SPECULATION = """
# TYPE vllm:spec_decode_num_drafts counter
vllm:spec_decode_num_drafts_total{engine="0",model_name="m"} 10.0
# TYPE vllm:spec_decode_num_draft_tokens counter
vllm:spec_decode_num_draft_tokens_total{engine="0",model_name="m"} 110.0
# TYPE vllm:spec_decode_num_accepted_tokens counter
vllm:spec_decode_num_accepted_tokens_total{engine="0",model_name="m"} 13.0
# TYPE vllm:spec_decode_num_accepted_tokens_per_pos counter
""" + "".join(
    f'vllm:spec_decode_num_accepted_tokens_per_pos_total{{engine="{engine}",position="{at}"}} '
    f"{count}\n"
    for engine in (0, 1)
    for at, count in enumerate((4, 2, 0, 0, 0, 0, 0, 0, 0, 0, 1))
)


def test_replicas_of_one_server_count_together() -> None:
    seen = Vllm().read_metrics(TWO_REPLICAS)
    assert seen.running == 3
    assert seen.kv_usage == pytest.approx(0.6)  # a share, so not a sum
    assert seen.prefix_hit_share == 0.75
    assert seen.requests_finished == 7
    assert seen.ttft == TimeSpread(mean=0.125, p50=pytest.approx(0.1), p99=pytest.approx(0.198))
    assert seen.tpot is None


def test_an_engine_without_speculation_tells_nothing_of_drafts() -> None:
    seen = Vllm().read_metrics(TWO_REPLICAS)
    assert seen.drafts is None and seen.acceptance_length is None
    assert seen.accepted_by_position == ()


def test_accepted_tokens_stand_in_the_order_of_their_positions() -> None:
    seen = Vllm().read_metrics(TWO_REPLICAS + SPECULATION)
    assert seen.accepted_by_position == (8, 4, 0, 0, 0, 0, 0, 0, 0, 0, 2)  # "10" is after "9"
    assert seen.acceptance_length == pytest.approx(2.3)


def test_our_own_server_is_read() -> None:
    rounds = [Round(1, 3, 2), Round(4, 3, 0)]
    stats = EngineStats(
        running=1,
        waiting=2,
        kv_usage=0.25,
        prefix_queries=8,
        prefix_hits=2,
        speculation=SpeculationStats.of(rounds),
    )
    text = ServerMetrics("m", lambda: stats).render().decode()
    seen = PacelineServer().read_metrics(text)
    assert (seen.running, seen.waiting, seen.kv_usage) == (1, 2, 0.25)
    assert (seen.drafts, seen.drafted, seen.accepted) == (2, 6, 2)
    assert seen.accepted_by_position == (1, 1, 0)
    assert seen.prefix_hit_share == 0.25


def test_metrics_of_another_engine_are_refused() -> None:
    with pytest.raises(ValueError, match="no metric paceline:"):
        PacelineServer().read_metrics(TWO_REPLICAS)
    with pytest.raises(ValueError, match="no metric vllm:"):
        Vllm().read_metrics("# TYPE up gauge\nup 1\n")


EARLIER = EngineMetrics(
    running=1,
    waiting=0,
    generated_tokens=100,
    drafts=10,
    drafted=30,
    accepted=5,
    accepted_by_position=(4, 1),
)


def test_the_time_between_two_readings_has_its_own_acceptance() -> None:
    later = replace(
        EARLIER,
        running=7,
        generated_tokens=150,
        drafts=12,
        drafted=36,
        accepted=11,
        accepted_by_position=(6, 3, 2),
    )
    between = later.since(EARLIER)
    assert between.running == 7
    assert between.generated_tokens == 50
    assert between.acceptance_length == 4.0
    assert between.accepted_by_position == (2, 2, 2)


def test_after_a_restart_all_counters_count_from_zero() -> None:
    restarted = replace(EARLIER, generated_tokens=120, drafts=3, accepted=1)
    assert restarted.since(EARLIER) == restarted


def test_counters_that_began_between_two_readings_count_from_zero() -> None:
    before = replace(EARLIER, drafts=None, drafted=None, accepted=None, accepted_by_position=())
    assert EARLIER.since(before).accepted == 5
