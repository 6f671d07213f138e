// Package jersey is what the web servers of YARN do around every answer of their REST interfaces: three dialects of JSON and XML, made from
// one description of an object; errors in an envelope; the choice between JSON and XML; headers; gzip. Resource manager and node manager
// share it. Reference: Hadoop 3.4.1 (Jersey 1, JAXB), recorded answers.
//
// An object is a struct whose fields have json tags. What the tag says (name, omitempty, "-") holds for all forms.
package jersey
