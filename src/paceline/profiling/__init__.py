"""The time of a step by its parts: recorded on the real engine, beside the roofline, as a trace."""
