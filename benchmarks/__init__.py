"""Speed, stated as ratios that are measured in one run."""
