"""Diagnosis of engine failures from log and exit code, with suggested fixes."""
