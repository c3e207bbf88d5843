"""Altair charts, one function per figure family: from data frames to a chart."""
