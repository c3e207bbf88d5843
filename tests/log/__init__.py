"""Tests of the event log, by real faults."""
