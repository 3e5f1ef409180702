"""Recorded agent sessions to replay."""
