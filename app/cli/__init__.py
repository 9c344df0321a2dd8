"""Commands that need the gateway's own code: `weir serve`, `config`, `log`, `backup`, `restore`, `import`.

Knows: settings, the engine, directories of logs. Must never know: how HTTP requests are answered.
"""
