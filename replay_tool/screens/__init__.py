"""Text for people, made from what the verbs return. No reading and no deciding here."""
