"""Studies and results of other programs as experiments of this one."""
