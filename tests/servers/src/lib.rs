//! Private database servers for the tests: started on free ports in temporary directories, and stopped by process id.
