package main

import (
	"context"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"net/http/pprof"
	"os"

	"github.com/gohops/hops/internal/security"
)

// profiler serves net/http/pprof at the address in HOPS_PPROF, host:port on loopback, for who looks for CPU time; without
// the variable nothing listens. The address is logged, because a port of 0 lets the system choose.
func profiler(logger *slog.Logger) error {
	addr := os.Getenv("HOPS_PPROF")
	if addr == "" {
		return nil
	}
	door := security.NewDoor(security.Config{Logger: logger})
	if err := door.CheckBind(addr); err != nil {
		return fmt.Errorf("HOPS_PPROF: %w", err)
	}
	l, err := net.Listen("tcp", addr)
	if err != nil {
		return fmt.Errorf("HOPS_PPROF: %w", err)
	}
	go serveProfiles(door, l, logger)
	logger.Info("profiles are served", "url", "http://"+l.Addr().String()+"/debug/pprof/")
	return nil
}

// serveProfiles serves them for as long as the process accepts connections.
func serveProfiles(door *security.Door, l net.Listener, logger *slog.Logger) {
	mux := http.NewServeMux()
	mux.HandleFunc("/debug/pprof/", pprof.Index)
	mux.HandleFunc("/debug/pprof/profile", pprof.Profile)
	mux.HandleFunc("/debug/pprof/trace", pprof.Trace)
	mux.HandleFunc("/debug/pprof/symbol", pprof.Symbol)
	own := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if !door.Own(r) { // profiles tell what the process does, and cost it time
			http.Error(w, "profiles are for the user who runs this process", http.StatusForbidden)
			return
		}
		mux.ServeHTTP(w, r)
	})
	if err := door.ServeHTTP(context.Background(), l, security.HTTP{Doorway: security.Doorway{Name: "profiler HTTP"}, Handler: own, Logger: logger}); !hungUp.Load() {
		logger.Error("profiles are not served any more", "err", err)
	}
}
