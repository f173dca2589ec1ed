"""Training data without user data: public prompts, answered by the target as the app would."""
