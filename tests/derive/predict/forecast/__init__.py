"""Tests of forecasts of whole models."""
