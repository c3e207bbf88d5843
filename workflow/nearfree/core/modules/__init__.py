"""The kinds of modules, one file each: what is known of a module before it is measured."""
