"""Framework adapters: attached to an unmodified script when it imports the framework.

`import_hook` waits for the import, `registry` says which adapter belongs to which module, and each adapter knows one
framework's objects. Only an adapter imports its framework, and only after the user did.
"""
