"""One module a level; each has ``checks(context)``."""
