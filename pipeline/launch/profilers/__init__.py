"""Profilers that are started before a job, as named by the YAML files of `conf/profiler`.

They share `dcgm_pause.py`, which makes DCGM release the GPU's performance counters.
"""
