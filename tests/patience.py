"""How long tests wait for what must happen."""

PATIENCE = 90  # seconds; on a busy machine Python alone takes ten to start
