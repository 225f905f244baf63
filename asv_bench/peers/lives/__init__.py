"""Lives of engines: standard library and the engine alone, since other interpreters run them."""
