"""Tests of nearfree.gguf; a package `gguf` here would hide the installed one."""
