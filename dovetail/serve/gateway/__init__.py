"""One OpenAI-compatible endpoint in front of many models: who may ask, which model answers, what it took."""
