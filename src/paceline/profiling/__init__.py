"""Where a step's time goes: recorded on the real engine, set beside the roofline, drawn as a
trace."""
