"""GEMINI: the newest safe state is always in somebody's memory."""
