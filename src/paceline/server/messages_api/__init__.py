"""Anthropic's Messages API, translated to and from chat."""
