"""Stand-ins for SGLang's ops."""
