"""Tests of nearfree.derive.outlook."""
