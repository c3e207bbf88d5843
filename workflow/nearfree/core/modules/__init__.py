"""The kinds of modules, one file each: shapes, axes, executed work and the paper's laws."""
