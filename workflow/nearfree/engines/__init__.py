"""Real engines, driven from outside: their libraries, the functions of these, their forwards."""
