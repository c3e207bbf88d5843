"""Real engines, driven from outside: their builds, the calls of their libraries, their forwards."""
