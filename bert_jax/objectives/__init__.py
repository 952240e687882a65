"""Objectives: what a model is trained to predict, one in each file."""
