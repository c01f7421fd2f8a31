"""What the tests stand on: real servers, a proxy that makes trouble, child processes, waiting without sleeping."""
