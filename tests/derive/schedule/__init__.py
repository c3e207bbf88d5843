"""Tests of schedules that engines are given."""
