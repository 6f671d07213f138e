package rest

import (
	_ "embed"
	"net/http"

	"github.com/gohops/hops/internal/security"
)

// OpenAPI is the description of /api/v1 (OpenAPI 3.1). It is made of the documents' types: go test ./resourcemanager/rest -run
// TestOpenAPI -update.
//
//go:embed openapi.json
var OpenAPI []byte

var openAPIRoutes = []Route{{Method: "GET", Path: "/api/v1/openapi.json", Right: security.Anyone, each: true, handle: func(q *request) {
	q.w.Header().Set("Content-Type", "application/json;charset=utf-8")
	q.w.WriteHeader(http.StatusOK)
	q.w.Write(OpenAPI)
}}}
