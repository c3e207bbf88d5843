"""Altair charts, one function a figure family: frames in, chart out."""
