"""OpenAI's batch files: requests in lines of JSON, answered without a server's port."""
