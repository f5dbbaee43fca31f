"""The commands: functions whose parameters are the arguments. Small ones that belong together share a module."""
