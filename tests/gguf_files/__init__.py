"""Tests of nearfree.gguf; a package `gguf` here would hide the one that files are held against."""
