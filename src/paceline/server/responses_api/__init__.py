"""OpenAI's Responses API, translated to and from chat."""
