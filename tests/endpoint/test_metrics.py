"""One scrape has Envoy's counts and the metrics of every replica, by replica."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from paceline.bench.load.server_process import free_port
from paceline.core import InvalidRequest
from paceline.endpoint.metrics import Families, MetricsServer, add_labelled, rendered
from paceline.endpoint.replicas import DrafterReplicas
from paceline.roofline.traffic.metrics import parse_metrics
from tests.endpoint.fleet import Asker, comes_true, kill, needs_envoy
from tests.endpoint.managed import managed, routes, use_fake

TEXT = """# HELP tokens_total Tokens.
# TYPE tokens_total counter
tokens_total{model="m"} 3
tokens_total{model="n"} 4.5e+06
# HELP seconds Times.
# TYPE seconds histogram
seconds_bucket{le="+Inf"} 2
seconds_sum 1.5
seconds_count 2
"""


def test_lines_of_a_metric_stay_together_with_their_replica() -> None:
    families: Families = {}
    add_labelled(families, TEXT, {"replica": "a"})
    add_labelled(families, TEXT, {"replica": 'b"'})
    lines = [line for each in families.values() for line in each]
    assert lines.count("# TYPE tokens_total counter") == lines.count("# HELP seconds Times.") == 1
    assert lines[2:6] == [
        'tokens_total{replica="a",model="m"} 3',
        'tokens_total{replica="a",model="n"} 4.5e+06',
        'tokens_total{replica="b\\"",model="m"} 3',
        'tokens_total{replica="b\\"",model="n"} 4.5e+06',
    ]
    assert 'seconds_sum{replica="a"} 1.5' in lines


@pytest.fixture
def replicas(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[DrafterReplicas]:
    monkeypatch.setattr("paceline.endpoint.description.find_program", None)  # put back at the end
    use_fake()
    made = DrafterReplicas(tmp_path, managed())
    made.load("a", "ngram")
    made.load("b.2", "suffix")
    made.route(routes(**{"a": 0.5, "b.2": 0.5}))
    yield made
    made.down(0)


@needs_envoy
def test_one_scrape_has_all_replicas(replicas: DrafterReplicas) -> None:
    asker = Asker(replicas.endpoint.listen)
    arms = asker.arms(30)
    listen = f"127.0.0.1:{free_port()}"
    server = MetricsServer(listen, replicas)
    with pytest.raises(InvalidRequest, match=r"metrics: got .* expected a free address"):
        MetricsServer(listen, replicas)
    try:
        text = httpx.get(f"http://{listen}/metrics", trust_env=False).text
        assert httpx.get(f"http://{listen}/", trust_env=False).status_code == 404
    finally:
        server.close()
    assert f'paceline:endpoint_requests_total{{replica="a",code="2xx"}} {arms.count("a")}' in text
    assert f'replica="b.2",code="2xx"}} {arms.count("b.2")}' in text
    assert 'paceline:endpoint_replica{replica="a",state="live"} 1' in text
    assert 'vllm:num_requests_running{replica="b.2"} 0' in text
    parse_metrics(text)


@needs_envoy
def test_answers_that_break_off_and_replicas_that_end_show(replicas: DrafterReplicas) -> None:
    replicas.route(routes(**{"b.2": 1.0}))
    with pytest.raises(httpx.HTTPError):
        Asker(replicas.endpoint.listen).response(stream=True, breaks_off=True)
    assert 'paceline:endpoint_broken_total{replica="b.2"} 1' in rendered(replicas)
    pid = replicas.loaded()["b.2"].pid
    assert pid is not None
    kill(pid)
    assert comes_true(lambda: replicas.loaded()["b.2"].state == "failed")
    assert 'paceline:endpoint_replica{replica="b.2",state="failed"} 1' in rendered(replicas)
