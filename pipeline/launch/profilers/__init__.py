"""Profilers that stand before the command of a job, named by the YAML files of `conf/profiler`.

`dcgm_pause.py` is what they share: DCGM lets go of the counters of the GPU meanwhile.
"""
