"""A load generator for any server with OpenAI's API. The standard library only, so that it runs in any environment."""
