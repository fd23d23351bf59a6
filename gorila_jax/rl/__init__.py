"""Pure mathematics over arrays: windows, returns, TD errors, exploration schedules, gradient guards."""
