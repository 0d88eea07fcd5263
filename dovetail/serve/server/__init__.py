"""Models over HTTP: requests that come close together are answered by one call, on replicas that may be lost."""
