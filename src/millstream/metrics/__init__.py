"""Metrics of jobs: what is measured, its history in a job's folder, and what it says about a job without output."""
