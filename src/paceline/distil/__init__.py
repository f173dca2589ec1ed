"""Distillation: a smaller model learns an application from what a larger one answered."""
