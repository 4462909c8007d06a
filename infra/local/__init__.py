"""What commands use on a developer's machine: servers, emulators, clients."""
