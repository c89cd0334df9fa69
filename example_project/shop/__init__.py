"""The shop's app: models, the jobs that they cause, and the demo."""
