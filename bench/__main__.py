from bench.cli import main

try:
    main()
except KeyboardInterrupt:
    raise SystemExit(130) from None
