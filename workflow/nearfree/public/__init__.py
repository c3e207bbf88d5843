"""What others measured or published, as events."""
