"""The drafters as SGLang model classes; the only place in drafters/ that imports SGLang."""
